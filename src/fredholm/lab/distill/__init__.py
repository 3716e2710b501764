"""Models that learn from other models: :mod:`linearize` gives a pretrained model linear attention,
:mod:`compress` gives a trained one low-rank operators.

``stages.py`` has what a conversion trains, ``fit.py`` how a stage is trained, ``progress.py`` where
it stands; ``sources.py`` reads folders and names, as the command line gives them.
"""
