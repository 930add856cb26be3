"""Routing policies, one idea a module; `cluster/router.py` names them."""
