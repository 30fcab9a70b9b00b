# Libraries of the distribution, as imported targets so that their headers count as system headers.
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
pkg_check_modules(JANSSON REQUIRED IMPORTED_TARGET jansson)
pkg_check_modules(PROTOBUF_C REQUIRED IMPORTED_TARGET libprotobuf-c)
pkg_check_modules(SODIUM REQUIRED IMPORTED_TARGET libsodium)
pkg_check_modules(URING REQUIRED IMPORTED_TARGET liburing)
pkg_check_modules(SQLITE REQUIRED IMPORTED_TARGET sqlite3)
pkg_check_modules(MICROHTTPD REQUIRED IMPORTED_TARGET libmicrohttpd)
pkg_check_modules(LIBVIRT REQUIRED IMPORTED_TARGET libvirt libvirt-qemu)
pkg_check_modules(LIBARCHIVE REQUIRED IMPORTED_TARGET libarchive)
pkg_check_modules(ZSTD REQUIRED IMPORTED_TARGET libzstd)
# wslay comes without a .pc file.
find_path(WSLAY_INCLUDE wslay/wslay.h REQUIRED)
find_library(WSLAY_LIBRARY wslay REQUIRED)
add_library(WSLAY::WSLAY UNKNOWN IMPORTED)
set_target_properties(WSLAY::WSLAY PROPERTIES
    IMPORTED_LOCATION ${WSLAY_LIBRARY} INTERFACE_INCLUDE_DIRECTORIES ${WSLAY_INCLUDE})
find_program(PROTOC_C protoc-c REQUIRED)
