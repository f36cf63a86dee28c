"""Functions of tensors: conversion, precision, nonfinite values, storage checks, rotary embeddings."""
