"""From findings to somebody's attention: Prometheus rules, runbooks, the run watcher, Alertmanager and webhooks."""
