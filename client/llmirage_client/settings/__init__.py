"""What a user can choose, declared once: the command line, study files and Python callers read it here.

The settings of a run itself are load.options.RunOptions.
"""
