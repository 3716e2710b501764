"""How well a model answers: scores, training curves, mistakes, predicted against true."""
