"""The data sets, one file each; importing this package registers them."""

from fredholm.data.catalogue import cifar10, digits, fashion_mnist, image_folder, mnist, movie_reviews
from fredholm.data.registry import register_dataset

for _module in (digits, fashion_mnist, mnist, cifar10, image_folder, movie_reviews):
    register_dataset(_module.ENTRY)
