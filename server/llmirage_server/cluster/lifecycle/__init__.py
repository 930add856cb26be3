"""Pools of instances, their starts, stops and crashes, and autoscaling."""
