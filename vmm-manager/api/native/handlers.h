#pragma once

struct request;

/* Handlers of the routes, by the file that has them. */

/* host.c */
void handle_version(struct request *req);
void handle_doctor(struct request *req);
void handle_shutdown(struct request *req);
void handle_kernels(struct request *req);

/* templates.c */
void handle_templates(struct request *req);
void handle_template(struct request *req);
void handle_template_build(struct request *req);
void handle_template_remove(struct request *req);

/* pools.c */
void handle_pools(struct request *req);
void handle_pool_set(struct request *req);
void handle_pool_unset(struct request *req);

/* images.c */
void handle_images(struct request *req);
void handle_image(struct request *req);
void handle_image_remove(struct request *req);
void handle_image_import(struct request *req);
void handle_image_pull(struct request *req);
void handle_image_export(struct request *req);
void handle_image_prune(struct request *req);
void handle_registry_login(struct request *req);
void handle_registry_logout(struct request *req);

/* builds.c */
void handle_image_build(struct request *req);

/* sandboxes.c */
void handle_sandboxes(struct request *req);
void handle_sandbox(struct request *req);
void handle_sandbox_remove(struct request *req);
void handle_sandbox_logs(struct request *req);
void handle_sandbox_stats(struct request *req);

/* create.c */
void handle_sandbox_create(struct request *req);

/* sleep.c */
void handle_hibernate(struct request *req);
void handle_resume(struct request *req);

/* snapshots.c */
void handle_fork(struct request *req);
void handle_checkpoints(struct request *req);
void handle_checkpoint(struct request *req);
void handle_rollback(struct request *req);
void handle_snapshots(struct request *req);
void handle_snapshot_remove(struct request *req);
void handle_snapshot_verify(struct request *req);
void handle_snapshot_repair(struct request *req);
void handle_snapshot_fork(struct request *req);

/* exec.c */
void handle_exec(struct request *req);
void handle_processes(struct request *req);
void handle_process_attach(struct request *req);
void handle_process_signal(struct request *req);

/* code-run.c */
void handle_code_run(struct request *req);

/* sessions.c */
void handle_sessions(struct request *req);
void handle_session_new(struct request *req);
void handle_session_remove(struct request *req);
void handle_session_run(struct request *req);
void handle_session_attach(struct request *req);

/* files.c */
void handle_file_stat(struct request *req);
void handle_file_list(struct request *req);
void handle_file_remove(struct request *req);
void handle_file_mkdir(struct request *req);
void handle_file_move(struct request *req);
void handle_file_symlink(struct request *req);
void handle_file_attr(struct request *req);
void handle_file_watch(struct request *req);

/* content.c */
void handle_file_read(struct request *req);
void handle_file_write(struct request *req);

/* events.c */
void handle_events(struct request *req);

/* usage.c */
void handle_usage(struct request *req);

/* openapi.c */
void handle_openapi(struct request *req);

/* ports.c */
void handle_ports(struct request *req);

/* terminal.c */
void handle_terminal(struct request *req);

/* keys.c */
void handle_keys(struct request *req);
void handle_key_new(struct request *req);
void handle_key_remove(struct request *req);

/* dial.c */
void handle_dial(struct request *req);
