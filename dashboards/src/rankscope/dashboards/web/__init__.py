"""Web server of the pages: access control, login, security headers."""
