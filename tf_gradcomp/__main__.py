# SPDX-License-Identifier: Apache-2.0
"""`python -m tf_gradcomp` is the command `tf-gradcomp`."""

import sys

from tf_gradcomp.cli import main

sys.exit(main())
