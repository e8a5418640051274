"""The pages: each module makes those of its name, by being imported."""
