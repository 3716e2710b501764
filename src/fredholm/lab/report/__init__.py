"""HTML reports: of runs, of single layers, of pretrained vision transformers, of comparisons.

A page is made of sections, one module each by what a reader looks for:

- :mod:`.results`: scores, training curves, mistakes among classes, predicted against true numbers;
- :mod:`.examples`: rows, texts, pictures, series and fields beside the model's answers;
- :mod:`.importance`: which columns of a table, and which words of a text, decide;
- :mod:`.maps`: what one query takes from all points: the interactive figure, maps, graphs;
- :mod:`.kernels`: kernels against distance, content and position, steps of a continuous model;
- :mod:`.attention`: whether attention maps are faithful and find the object.

:mod:`.report`, :mod:`.module`, :mod:`.pretrained` and :mod:`.comparison` choose the sections of a
page; conversions have theirs in :mod:`fredholm.lab.distill.page`. :mod:`.given`, :mod:`.sources`,
:mod:`.subject` and :mod:`.layers` hold what is shown; :mod:`.page`, :mod:`.style` and :mod:`.panels`
its look. The prose is in ``templates/``: ``run.html``, ``comparison.html``, ``conversion.html``.
"""
