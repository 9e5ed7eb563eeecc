// The key of the types.
"use strict";

if (document.getElementById("types-key")) gridKey("types-key", page.types);
