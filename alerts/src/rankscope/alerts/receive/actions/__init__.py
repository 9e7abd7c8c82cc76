"""Actions that alerts trigger: ``runner`` sends requests to runs, ``results`` describes what came of them."""
