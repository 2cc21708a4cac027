"""Reading weights from the places that people keep them."""
