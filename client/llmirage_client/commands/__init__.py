"""The commands behind `llmirage`: here their options, a module each; in `actions` what they do."""
