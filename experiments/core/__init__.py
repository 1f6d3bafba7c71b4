"""The parts that figures are made of; independent of any data set and any figure."""
