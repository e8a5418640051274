"""The pages: each module makes those that its name says, by being imported."""
