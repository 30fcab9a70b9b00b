# One folder, one static library. The link list is the folder's rule: tests/lint checks the #include
# lines against it.
#
#   hearth_library(NAME [STRICT] SOURCES a.c b.c LINK other ... )
function(hearth_library name)
    cmake_parse_arguments(arg "STRICT" "" "SOURCES;LINK" ${ARGN})
    add_library(${name} STATIC ${arg_SOURCES})
    target_include_directories(${name} PUBLIC ${HEARTH_INCLUDE_DIRS})
    hearth_compile(${name})
    if(arg_STRICT)
        target_compile_options(${name} PRIVATE ${HEARTH_STRICT_WARNINGS})
    endif()
    target_link_libraries(${name} PUBLIC ${arg_LINK})
endfunction()

# Program or test binary of ours.
function(hearth_program name)
    cmake_parse_arguments(arg "" "" "SOURCES;LINK" ${ARGN})
    add_executable(${name} ${arg_SOURCES})
    hearth_compile(${name})
    target_include_directories(${name} PRIVATE ${HEARTH_INCLUDE_DIRS})
    target_link_libraries(${name} PRIVATE ${arg_LINK})
endfunction()

function(hearth_compile name)
    target_compile_options(${name} PRIVATE ${HEARTH_WARNINGS} ${HEARTH_HARDENING}
        ${HEARTH_SANITIZE_FLAGS})
    target_link_options(${name} PUBLIC ${HEARTH_SANITIZE_FLAGS} -Wl,-z,relro,-z,now)
    get_target_property(type ${name} TYPE)
    if(type STREQUAL "EXECUTABLE")
        target_link_options(${name} PRIVATE -pie)
    endif()
endfunction()

# Headers are included by folder name: "base/fd.h", "host/exec.h", "kernel/kernel.h".
set(HEARTH_INCLUDE_DIRS
    ${CMAKE_SOURCE_DIR}/vmm-manager
    ${CMAKE_SOURCE_DIR}/guest-agentless
    ${CMAKE_SOURCE_DIR}/rootfs-tools
    ${CMAKE_SOURCE_DIR}/snapshots)
