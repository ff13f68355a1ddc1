"""What several test files share: helpers, checks that run in processes of their own, and a user's
kernel.
"""
