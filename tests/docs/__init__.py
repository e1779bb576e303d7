"""The pages of docs/: their links, their commands, the site made of them."""
