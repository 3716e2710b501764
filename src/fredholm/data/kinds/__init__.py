"""The kinds of data, a file each: a data set of images, texts, sequences, points, … says what it is."""
