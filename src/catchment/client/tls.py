"""TLS as a client: whom to trust. There is no switch to trust everyone (facts/reliability.md, "TLS")."""

from __future__ import annotations

import ssl

from catchment.errors import UserError


def client_context(cafile: str | None) -> ssl.SSLContext | None:
    """A context that trusts the authorities in `cafile`; None, which means the system's, without one.

    Raises:
        UserError: the file cannot be read or holds no certificate.
    """
    if cafile is None:
        return None
    try:
        context = ssl.create_default_context(cafile=cafile)
    except ssl.SSLError:
        raise UserError(f"{cafile} holds no certificate in PEM form: name the file of the authority.") from None
    except OSError as error:
        raise UserError(f"The file of the authority {cafile} cannot be read: {error.strerror}.") from None
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
