"""Classical layers as operators (exact) and pretrained models as linear ones: issues yet to come fill this room."""
