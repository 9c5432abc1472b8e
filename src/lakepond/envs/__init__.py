"""Environments and the data they are made of; none is imported until it is used."""
