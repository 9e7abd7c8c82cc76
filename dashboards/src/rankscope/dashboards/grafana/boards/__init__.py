"""Boards as code. Needs grafana-foundation-sdk, which is for those who change boards: what is shipped is the JSON made here."""
