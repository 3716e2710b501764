"""The data sets, one file each; importing this package registers them."""

from fredholm.data.catalogue import (
    aan,
    adding,
    cifar10,
    cifar_mosaic,
    copy_memory,
    digits,
    fashion_canvas,
    fashion_mnist,
    image_folder,
    imdb,
    listops,
    mnist,
    movie_reviews,
    pathfinder,
    time_series,
    verses,
)
from fredholm.data.registry import register_dataset

for _module in (digits, fashion_mnist, mnist, cifar10, image_folder, movie_reviews, copy_memory, adding):
    register_dataset(_module.ENTRY)
for _entry in (time_series.JAPANESE_VOWELS, time_series.PLAID, time_series.TS_FOLDER):
    register_dataset(_entry)
for _module in (fashion_canvas, cifar_mosaic):
    register_dataset(_module.ENTRY)
for _module in (listops, pathfinder, verses, imdb, aan):
    register_dataset(_module.ENTRY)
for _module in (listops, pathfinder):
    register_dataset(_module.OFFICIAL)
