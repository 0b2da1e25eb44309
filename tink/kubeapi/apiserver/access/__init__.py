"""Who calls, and what they may do: users with tokens of their own, and the roles of Kubernetes."""

from tink.kubeapi.apiserver.access.authenticator import Authenticator, TokenExpiredError, WrongTokenError
from tink.kubeapi.apiserver.access.authorizer import Action, Request, allowed, forbidden_message, rules_in
from tink.kubeapi.apiserver.access.callers import ADMIN, MASTERS, Caller
from tink.kubeapi.apiserver.access.impersonation import (
    ImpersonationError,
    ImpersonationForbiddenError,
    impersonated,
    wants_impersonation,
)
from tink.kubeapi.apiserver.access.roles import ROLES
from tink.kubeapi.apiserver.access.user_file import FILE, UserFileError, change_role, issue, read_users, revoke
from tink.kubeapi.apiserver.access.users import Credential, User, UserError, Users

__all__ = [
    "ADMIN",
    "FILE",
    "MASTERS",
    "ROLES",
    "Action",
    "Authenticator",
    "Caller",
    "Credential",
    "ImpersonationError",
    "ImpersonationForbiddenError",
    "Request",
    "TokenExpiredError",
    "User",
    "UserError",
    "UserFileError",
    "Users",
    "WrongTokenError",
    "allowed",
    "change_role",
    "forbidden_message",
    "impersonated",
    "issue",
    "read_users",
    "revoke",
    "rules_in",
    "wants_impersonation",
]
