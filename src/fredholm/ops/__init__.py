"""Pure tensor functions: ``naive.py`` is the same function in its plainest form, the files beside
it are the fast forms.
"""
