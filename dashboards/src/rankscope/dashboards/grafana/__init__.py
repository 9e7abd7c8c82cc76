"""Boards for Grafana: built in ``boards`` with Grafana's library, stored as JSON in ``json``, exported without that library."""
