"""Names from below the public API, for tests outside `tests/unit`: one module a package of `towline`.

Who moves a module of the package mends its line here, and no test. A name that is not here yet is added.
"""
