# SPDX-License-Identifier: Apache-2.0
"""The names of rules_cc that Bazel's own files load, as the rules built into Bazel."""

cc_binary = native.cc_binary
cc_import = native.cc_import
cc_library = native.cc_library
cc_test = native.cc_test
cc_toolchain = native.cc_toolchain
cc_toolchain_suite = native.cc_toolchain_suite
