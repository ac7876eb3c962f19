"""Settings of DuckDB, for queries of tables and for expressions."""

from __future__ import annotations

#: Settings that restrict a query to the registered tables: no files, no network.
SETTINGS = {
    "allow_community_extensions": "false",
    "autoinstall_known_extensions": "false",
    "autoload_known_extensions": "false",
    "enable_external_access": "false",
    # duckdb_settings() lists them, with the home of this user in their defaults.
    "extension_directory": "/nonexistent",
    "home_directory": "/nonexistent",
    "secret_directory": "/nonexistent",
    "temp_directory": "",
    "python_enable_replacements": "false",
    "lock_configuration": "true",
    # Python produces rows one after the other, so more threads would only cost.
    "threads": "1",
}
