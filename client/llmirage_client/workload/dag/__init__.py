"""The dag_jsonl format in three steps: schema (one line alone), desugar (shorthands to branches), graph (all lines)."""
