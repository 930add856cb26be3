"""Pools of instances, and when instances come and go: starts, stops, crashes, autoscaling."""
