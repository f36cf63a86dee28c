"""Row normalizers: functions from a row of scores to a row of weights."""
