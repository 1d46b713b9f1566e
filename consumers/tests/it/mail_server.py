#!/usr/bin/env python3
"""A mail server with TLS and authentication, for the tests of the email consumer.

    mail_server.py starttls|tls PORT CERTIFICATE KEY MAILDIR
"""
import ssl, sys, threading
from aiosmtpd.controller import Controller
from aiosmtpd.handlers import Mailbox
from aiosmtpd.smtp import AuthResult

mode, port, certificate, key, maildir = sys.argv[1:]
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)


def authenticate(server, session, envelope, mechanism, login):
    return AuthResult(success=(login.login, login.password) == (b"shop@example.com", b"p@ss word"), handled=False)


options = {"tls_context": context, "require_starttls": True} if mode == "starttls" else {"ssl_context": context, "auth_require_tls": False}
Controller(Mailbox(maildir), hostname="127.0.0.1", port=int(port), authenticator=authenticate, auth_required=True, **options).start()
threading.Event().wait()
