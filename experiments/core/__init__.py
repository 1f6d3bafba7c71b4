"""What a figure is made of; knows no data and no figure."""
