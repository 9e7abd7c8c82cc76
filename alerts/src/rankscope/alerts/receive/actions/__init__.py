"""Actions that alerts trigger: ``action_runner`` sends requests to runs, ``results`` describes what came of them."""
