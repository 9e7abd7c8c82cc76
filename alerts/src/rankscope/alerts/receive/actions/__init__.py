"""Actions that alerts trigger: ``actor`` sends requests to runs, ``results`` describes what came of them."""
