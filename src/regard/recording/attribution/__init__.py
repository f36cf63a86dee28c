"""Attribution: rollout, relevance, attention flow, gradients and value norms."""
