"""`llmirage size`: the cheapest deployment for a traffic and its objectives, or the traffic that a deployment carries."""
