"""The schema: tables, their migration, those of each topic; privileges and settings of the server."""
