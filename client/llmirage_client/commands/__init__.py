"""The commands behind `llmirage`, one module each; imported only when called."""
