"""Boards for Grafana: built in ``boards`` with Grafana's own library, kept as JSON in ``json``, exported without that library."""
