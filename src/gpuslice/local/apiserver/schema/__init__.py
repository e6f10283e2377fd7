"""What objects are: kinds, types, defaults, validation, patches. Pure, it knows no request and no store."""
