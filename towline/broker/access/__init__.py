"""Access: authentication of clients, and their permissions.

authentication   credentials in, a principal out          account_store   users, tokens and rules on file
authorization    the check of every request               rules           what a principal may do, pure
permissions      words of the table of requests           accounts        requests about users, tokens, rules
access_file, setup_secret   the first ways in             audit, audit_files   the audit log
passwords, login_attempts, quota   limits of logins, and of principals
"""
