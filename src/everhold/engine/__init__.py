"""What moves sessions: what comes from outside is accepted, one function moves a session, one look
finds the rest.
"""
