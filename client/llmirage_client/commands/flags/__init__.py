"""The options of `llmirage run`, one module a subject: each adds its flags and turns them into fields of RunOptions."""
