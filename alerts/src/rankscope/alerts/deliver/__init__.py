"""Delivery of alerts: to Alertmanagers, posted again at every evaluation, and to webhooks through an outbox on disk.

Path of an alert: ``notifiers`` (Alertmanager's API, or the outbox) → ``message`` (a payload small enough for its target)
→ ``outbox`` (in the store) → ``sender`` (a thread per target) → ``templates`` (the target's format) → ``signing``
→ ``http_courier`` or ``apprise_courier`` (one attempt) → ``retrying`` (delivered, retried or given up). ``target_file`` reads the
operator's ``targets``; ``endpoint``, ``http_client`` and ``post`` make requests; ``failure_log`` reports failures;
``outbox_command`` and ``trial`` are the command line.
"""
