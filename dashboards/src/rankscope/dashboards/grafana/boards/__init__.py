"""Boards as code. Needs grafana-foundation-sdk, but only to change boards: the package ships the JSON generated here."""
