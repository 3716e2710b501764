"""HTML reports: of runs, of single layers, of pretrained vision transformers, of comparisons."""
