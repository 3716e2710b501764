"""CKConv on series observed at irregular times, beside GRU-D, a neural CDE and MiniROCKET.

- ``tasks.py``: the data: bursts and gaps put into JapaneseVowels and PLAID, and a task of lags.
- ``models.py``: the models of equal size.
- ``contest.py``: tuning, paces and runs.
- ``claims.py``, ``page.py``: what they show.
"""
